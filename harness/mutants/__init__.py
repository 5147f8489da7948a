"""Small defects in the production code, one at a time, and the search for the seed that shows each of them.

A net that never caught anything proves nothing. A mutant is data (`catalogue/*.toml`): a text of the production code,
what stands there instead, and which property dies by it. It is put into a copy of the packages, never into the
checkout, and the simulator runs seed after seed on that copy until a rule breaks.
"""
