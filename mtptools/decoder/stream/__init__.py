"""One teacher-forced pass over a model of any size, a layer in memory at a time.

passages.py   the texts, and which of their positions count;  texts.py  from files
source.py     layers of a checkpoint, built one by one;  outline.py, room.py  what each of them, and all, will take
model.py      one checkpoint on its way through memory;  trunk_pass.py  a layer over all passages
helpers.py    decoding beside the products;  buffers.py, read_ahead.py  memory and bytes for it
coming.py     matrices that are decoded so;  experts.py, arithmetic.py  what multiplies with them
states.py     what lies between layers, kept to go on from
head_pass.py  every draft of every position;  rates.py  from drafts to acceptance
run.py        the whole, of one checkpoint or of two side by side;  report.py  what it found
"""
