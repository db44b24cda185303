// Compiled for ARMv8.2 with dot products; nothing here may run before select_kernels() has seen them.
#include "kernels/neon.inl"

namespace medusa::kernels {
namespace {

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    in_strips(job, [](const Job& strip) {
        run_by_dots<codes, scales, has_table>(strip, std::make_integer_sequence<int, tile_columns>{});
    });
}

}  // namespace

const Kernels neon_dotprod = {"neon-dotprod", quantize, multiply, multiply_floats_neon, attend_neon, delta_net_neon};

}  // namespace medusa::kernels
