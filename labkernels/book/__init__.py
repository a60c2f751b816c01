"""What chapters share."""

#: Begins the line that a chapter prints for an experiment which this machine lacks something for.
NOT_HERE = "not measured here: "
