"""Is re-feeding a transcript the same as resuming the state that the model was in?"""
