"""What members say to each other: messages, the hello, their bytes, and which of them no honest peer can send."""
