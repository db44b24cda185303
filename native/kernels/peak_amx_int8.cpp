// Compiled like kernels/amx_int8.cpp.
#include "kernels/inline.h"
#include "kernels/peak.h"

namespace medusa::lab {
namespace {

struct alignas(64) TileConfiguration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Four sums of whole tiles: 16 x 16 results, 64 products each.
void run(int64_t rounds) {
    TileConfiguration configuration;
    for (int i = 0; i < 6; ++i) configuration.rows[i] = 16, configuration.row_bytes[i] = 64;
    __asm__ volatile("ldtilecfg %0" : : "m"(configuration));  // not by intrinsic: see kernels/amx_int8.cpp
    for (int64_t round = 0; round < rounds; ++round) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_release();
}

}  // namespace

const Peak peak_amx_int8 = {4 * 16 * 16 * 64, run};

}  // namespace medusa::lab
