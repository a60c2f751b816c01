"""What production kernels choose: census, dispatch, catalog."""
