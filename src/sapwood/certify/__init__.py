"""`sapwood certify`: test whether a recipe or a server is lossless."""
