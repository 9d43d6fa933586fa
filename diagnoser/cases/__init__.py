"""Cases of rules: written series, and what a rule must say of them."""
