"""Mutants: small defects of the production code, and a search for seeds of the simulator that expose them.

The simulator checks rules. A rule that has never been broken proves nothing, so each mutant must break a rule. A mutant
is data (`catalogue/*.toml`): a text of the production code, the text that replaces it, and the property that is lost.
The defect is put into a copy of the packages, never into the checkout, and the simulator runs seed after seed on this
copy until a rule is broken. If the simulator does not run the code of a mutant, the mutant names tests, and at least
one of them must fail.
"""
