"""Sign-in by an OpenID provider: settings, the provider, its tokens, the sign-in."""
