"""Everything that is not mathematics: errors, checked fields, random streams, processes, threads, files, the screen."""
