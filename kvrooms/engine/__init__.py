"""EngineCore and the thin threads around it: PrefillEngine, DecodeEngine and the handles of their rooms."""
