"""Draft heads in torch: layers, loss, fitting, export."""
