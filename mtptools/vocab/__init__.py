"""Draft vocabularies: which tokens a head may draft, how they are chosen, and how they are written down."""
