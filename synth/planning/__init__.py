"""Request and plan: the derivation of a layer's plan, stage by stage, and its JSON form."""
