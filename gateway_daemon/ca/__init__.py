"""Municipal certificate authority: identities, certificates and access rights."""
