"""The vital signs of LLM serving: what is wrong, the proof, and the lever that fixes it.

The packages of the tree are imported below this name: `kvitals.series`, `kvitals.rules`, `kvitals.agent` and so on.
"""
