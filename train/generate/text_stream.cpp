namespace tessera {}
