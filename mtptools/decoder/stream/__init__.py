"""One teacher-forced pass over a model of any size, a layer in memory at a time.

passages.py   the texts, and which of their positions count;  texts.py  from files
source.py     layers of a checkpoint, built one by one;  outline.py  what each of them will take
model.py      one checkpoint on its way through memory;  trunk_pass.py  a layer over all passages
states.py     what lies between layers, kept to go on from
head_pass.py  every draft of every position;  rates.py  from drafts to acceptance
run.py        the whole, of one checkpoint or of two side by side;  report.py  what it found
"""
