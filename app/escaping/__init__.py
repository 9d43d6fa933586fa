"""Texts from outside, made harmless for one format each: a module is a format.

Names of models, tenants, engines and labels, and the texts of others' alerts, are data. Whoever writes a format escapes
each piece where it enters, with that format's module, and writes the markup around it.
"""
