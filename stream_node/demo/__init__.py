"""`stream-node demo`: the main job on real input, with the proof that nothing confirmed was lost."""
