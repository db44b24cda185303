// How much other programs use of the cores that this one may run on.
#pragma once

#include <optional>

namespace medusa {

// Cores that other programs kept busy, on average since the last measurement, which is a fifth of a second old or
// older; the first began when the engine was started (begin_measuring_other_programs()). nullopt where the platform
// does not tell, or too early. From any thread.
std::optional<double> cores_of_other_programs();
void begin_measuring_other_programs();

}  // namespace medusa
