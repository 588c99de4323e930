"""What is no mathematics: errors, checked fields, random streams, processes, threads, files, the screen."""
