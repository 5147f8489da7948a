"""How fast the audit is: histories that are true by construction, and what each kernel takes for them."""
