"""What observations are held against: the prefecture's tables, JMA's files."""
