"""Where samples go: the folder, its filesystem, room and speed."""
