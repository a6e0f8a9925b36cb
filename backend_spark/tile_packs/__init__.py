"""Tile packs: files of map tiles that the console serves, and the command's makers."""
