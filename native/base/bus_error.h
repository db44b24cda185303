// A mapped file that is cut off while it is in use ends the process (SIGBUS): with a line that says so.
#pragma once

namespace medusa {

// From now on that line goes to stderr before the signal does what it did. Nothing where the program handles the signal
// itself, or on Windows.
void explain_bus_errors();

}  // namespace medusa
