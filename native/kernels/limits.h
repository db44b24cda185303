// What memory and an instruction set allow: the kernels are judged against it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/format.h"
#include "kernels/team.h"

namespace medusa::lab {

// On huge pages if the system provides them, as for a model's weights.
class Memory {
  public:
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    const size_t size;
    uint8_t* const data;
};

// Bytes per second that the team reads from `memory`, which has been written before; the best of all rounds.
double bandwidth(Team& team, const Memory& memory, int rounds);

// Multiplications of bytes per second on all threads, in registers; the best of all rounds. 0: not known.
double peak(Team& team, const kernels::Kernels& one, int rounds);

// The same for floats, as attention uses them beside those kernels.
double float_peak(Team& team, const kernels::Kernels& one, int rounds);

}  // namespace medusa::lab
