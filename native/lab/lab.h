// What the parts of the kernel lab share.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/format.h"

namespace medusa::lab {

struct Options {
    int64_t rows = 65536, columns = 4096;
    int64_t cells = 0;  // in the cache that attention is timed with; 0: products are timed
    int threads = 1;
    int rounds = 5;
    std::vector<int> widths{1, 2, 4, 8, 16, 32};
    std::string isa, type;                             // empty: all
    kernels::CellType cache = kernels::CellType::f16;  // of the cells
    bool check_only = false, once = false;
};

// For this processor, the reference first; with `isa`, the reference and that one, if it exists.
std::vector<const kernels::Kernels*> chosen_kernels(const Options& options);
std::vector<const kernels::Format*> chosen_formats(const Options& options);

// Random rows in ggml's layout. Block scales are finite and of moderate size; unless `sane`, those of every fourth
// block may be anything.
std::vector<uint8_t> random_weights(const kernels::Format& format, int64_t rows, int64_t columns, bool sane,
                                    std::mt19937& random);

// Compares all chosen kernels with the reference and prints any differences. false: there were some.
bool check(const Options& options);
bool check_attention(const Options& options);
bool check_delta_net(const Options& options);

// Prints a table of times for each number of threads.
void time_kernels(const Options& options);
void time_attention(const Options& options);

// Computes one product of each chosen format, kernel and width, and prints nothing.
void multiply_once(const Options& options);

}  // namespace medusa::lab
