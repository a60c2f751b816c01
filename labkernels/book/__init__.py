"""What chapters share."""

#: Begins the line that a chapter prints for an experiment which this machine lacks something for.
NOT_HERE = "not measured here: "

#: Names runs that a batch has measured on this GPU: a chapter takes them as its own instead of measuring again.
MEASURED = "LABKERNELS_MEASURED"
