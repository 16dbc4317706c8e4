"""Analysis: a Record read for one question at a time: phases, shapes, layout, timeline, statistics."""
