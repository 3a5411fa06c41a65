"""What the hand-off is made of: rooms, guards, memory layout, payloads and messages. No socket, clock or sleep here."""
