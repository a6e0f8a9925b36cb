"""The municipal authority: who is who, and what each may say."""
