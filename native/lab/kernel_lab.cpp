// kernel_lab: verifies every kernel that this processor runs against the scalar reference, then times all of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "lab/lab.h"

namespace medusa::lab {
namespace {

constexpr char usage[] =
    "usage: kernel_lab [--check] [--once] [--isa NAME] [--type NAME] [--rows N] [--columns N] [--threads N]\n"
    "                  [--rounds N] [--widths N,N,...] [--cells N] [--cache NAME]\n"
    "Compares all kernels with the scalar reference (exit status 1 when a bit differs), then times them for a matrix\n"
    "[rows, columns] on one thread and on all. --check: only compares. --cells: times attention instead, over a cache\n"
    "of so many tokens, of type f16 or --cache: q8_0, q4_0. --once: only computes each product once, for whoever\n"
    "counts its instructions.\n";

struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

int64_t number(const std::string& text, const char* name) {
    char* end = nullptr;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end || value < 1 || value > 1 << 30) {
        throw UsageError(std::string(name) + " takes a number from 1 on, not '" + text + "'");
    }
    return value;
}

std::vector<int> numbers(const std::string& text) {
    std::vector<int> all{1};
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) {
        all.push_back(static_cast<int>(number(part, "--widths")));
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

kernels::CellType cache_type(const std::string& name) {
    if (const auto type = kernels::cell_type(name)) return *type;
    throw UsageError("--cache takes f16, q8_0 or q4_0, not '" + name + "'");
}

Options parse(int argc, char** argv) {
    Options options;
    options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--check") {
            options.check_only = true;
            continue;
        }
        if (name == "--once") {
            options.once = true;
            continue;
        }
        if (++i == argc) throw UsageError("'" + name + "' is unknown or lacks its value");
        const std::string value = argv[i];
        if (name == "--isa") {
            options.isa = value;
        } else if (name == "--type") {
            options.type = value;
        } else if (name == "--rows") {
            options.rows = number(value, "--rows");
        } else if (name == "--columns") {
            options.columns = number(value, "--columns");
        } else if (name == "--threads") {
            options.threads = static_cast<int>(number(value, "--threads"));
        } else if (name == "--rounds") {
            options.rounds = static_cast<int>(number(value, "--rounds"));
        } else if (name == "--cells") {
            options.cells = number(value, "--cells");
        } else if (name == "--cache") {
            options.cache = cache_type(value);
        } else if (name == "--widths") {
            options.widths = numbers(value);
        } else {
            throw UsageError("unknown option '" + name + "'");
        }
    }
    return options;
}

void validate(const Options& options) {
    if (!options.isa.empty() && chosen_kernels(options).size() < 2) {
        throw UsageError("no kernels '" + options.isa + "' to compare with the reference on this processor");
    }
    if (chosen_formats(options).empty()) throw UsageError("no kernels for type '" + options.type + "'");
    for (const kernels::Format* format : chosen_formats(options)) {
        if (options.rows % kernels::group_rows != 0 || !kernels::fits(*format, options.columns)) {
            throw UsageError("rows must be a multiple of 16, columns of 256 (32 for types without super-blocks)");
        }
    }
}

int run(const Options& options) {
    if (chosen_kernels(options).size() < 2) {
        std::printf("this processor runs the scalar reference only: nothing to compare or time\n");
        return 0;
    }
    if (options.once) {
        multiply_once(options);
        return 0;
    }
    const bool products = check(options), attention = check_attention(options), net = check_delta_net(options);
    if (!products || !attention || !net) return 1;
    if (!options.check_only) options.cells > 0 ? time_attention(options) : time_kernels(options);
    return 0;
}

}  // namespace

std::vector<const kernels::Kernels*> chosen_kernels(const Options& options) {
    auto all = kernels::supported_kernels();
    const auto unwanted = [&](const kernels::Kernels* one) {
        return one != &kernels::scalar && !options.isa.empty() && options.isa != one->name;
    };
    all.erase(std::remove_if(all.begin(), all.end(), unwanted), all.end());
    return all;
}

std::vector<const kernels::Format*> chosen_formats(const Options& options) {
    std::vector<const kernels::Format*> formats;
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const kernels::Format* format = kernels::format_of(static_cast<ggml_type>(i));
        if (format && (options.type.empty() || options.type == ggml_type_name(format->type))) formats.push_back(format);
    }
    return formats;
}

}  // namespace medusa::lab

int main(int argc, char** argv) {
    using namespace medusa::lab;
    try {
        const Options options = parse(argc, argv);
        validate(options);
        return run(options);
    } catch (const UsageError& error) {
        std::fprintf(stderr, "kernel_lab: %s\n%s", error.what(), usage);
        return 2;
    }
}
