"""One teacher-forced pass over a model of any size, a layer in memory at a time.

passages.py   the texts, and which of their positions count
source.py     layers of a checkpoint, built one by one;  outline.py  what each of them will take
trunk_pass.py every layer over all passages;  states.py  what lies between layers, kept to go on from
head_pass.py  every draft of every position
rates.py      from drafts to acceptance;  run.py  the whole;  lockstep.py  two checkpoints side by side
"""
