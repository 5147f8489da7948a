"""Small defects in the production code, one at a time, and for each of them the search for a seed that exposes it.

A rule that never caught anything proves nothing. A mutant is data (`catalogue/*.toml`): a text of the production code,
the text that replaces it, and the property that is lost. It is put into a copy of the packages, never into the
checkout, and the simulator runs seed after seed on that copy until a rule breaks.
"""
