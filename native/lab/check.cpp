// Every kernel against the scalar reference, bit for bit, at every width.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/product.h"
#include "lab/guarded.h"
#include "lab/lab.h"

namespace medusa::lab {
namespace {

using kernels::CellSums;
using kernels::Format;
using kernels::Kernels;

constexpr int most_columns = 64;
constexpr int gap = 5;  // floats between the results of two columns

bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// One activation column of the kind that the index asks for: random, or hostile.
void fill_column(float* x, int64_t columns, int index, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < columns; ++i) x[i] = normal(random);
    const auto somewhere = [&] { return static_cast<int64_t>(random() % static_cast<uint64_t>(columns)); };
    const auto all = [&](const std::function<float(float)>& change) {
        for (int64_t i = 0; i < columns; ++i) x[i] = change(x[i]);
    };
    using Limits = std::numeric_limits<float>;
    switch (index % 16) {
        case 1:
            return all([](float) { return 0.0f; });
        case 2:
            return all([](float) { return -0.0f; });
        case 3:
            x[somewhere()] = 3e6f;
            return;
        case 4:
            return all([](float v) { return v * 1e-40f; });
        case 5:
            return all([](float v) { return v < 0 ? -Limits::denorm_min() : Limits::denorm_min(); });
        case 6:
            return all([](float v) { return v * 1e37f; });
        case 7:
            return all([](float v) { return v < 0 ? -Limits::max() : Limits::max(); });
        case 8:
            x[somewhere()] = Limits::quiet_NaN();
            return;
        case 9:
            x[somewhere()] = Limits::infinity();
            return;
        case 10:
            x[somewhere()] = -Limits::infinity();
            return;
        case 11:  // halves, where rounding matters
            for (int64_t i = 0; i < columns; ++i) {
                x[i] = i % kernels::cell_columns ? std::trunc(x[i] * 20) + 0.5f : 127.0f;
            }
            return;
        case 12:
            return all([](float v) { return v < 0 ? -127.0f : 127.0f; });
        default:
            return;
    }
}

// One packed matrix, its activations, and the reference's results.
class Case {
  public:
    Case(const Format& format, int64_t rows, int64_t columns, bool sane, std::mt19937& random)
        : format_(format),
          rows_(rows),
          columns_(columns),
          sane_(sane),
          stride_(kernels::column_bytes(format, columns)),
          result_stride_(static_cast<size_t>(rows) + gap),
          x_(static_cast<size_t>(most_columns * columns)),
          packed_(kernels::packed_bytes(format, columns, rows)),
          activations_(stride_ * most_columns),
          other_activations_(stride_ * most_columns),
          result_(result_stride_ * most_columns * sizeof(float)),
          expected_(result_stride_ * most_columns) {
        const auto weights = random_weights(format, rows, columns, sane, random);
        kernels::pack(format, weights.data(), packed_.data(), columns, rows, 0, groups());
        for (int c = 0; c < most_columns; ++c) fill_column(&x_[static_cast<size_t>(c * columns)], columns, c, random);
        quantize(kernels::scalar, activations_);
        kernels::multiply(kernels::scalar, format, packed_.data(), columns, rows, 0, groups(), activations_.data(),
                          stride_, most_columns, expected_.data(), result_stride_);
    }

    bool agrees(const Kernels& one, std::mt19937& random) {
        if (!quantizes(one)) return false;
        for (int n = 1; n <= most_columns; ++n) {
            // Any column may be at any place in a tile.
            const int first = static_cast<int>(random() % static_cast<unsigned>(most_columns - n + 1));
            if (!multiplies(one, first, n)) return false;
        }
        if (packed_.intact() && activations_.intact()) return true;
        return report(one, "wrote outside its buffer");
    }

  private:
    int64_t groups() const { return kernels::groups_of(rows_); }

    bool report(const Kernels& one, const std::string& what) const {
        std::printf("MISMATCH %s %s [%d rows, %d columns%s]: %s\n", one.name, ggml_type_name(format_.type),
                    static_cast<int>(rows_), static_cast<int>(columns_), sane_ ? "" : ", any scales", what.c_str());
        return false;
    }

    void quantize(const Kernels& one, Guarded& target) {
        for (int c = 0; c < most_columns; ++c) {
            kernels::prepare(one, format_, &x_[static_cast<size_t>(c * columns_)], columns_,
                             target.data() + stride_ * c);
        }
    }

    bool quantizes(const Kernels& one) {
        other_activations_.refill();
        quantize(one, other_activations_);
        if (!other_activations_.intact()) return report(one, "quantize wrote outside its buffer");
        for (int c = 0; c < most_columns && !format_.is_float(); ++c) {
            const uint8_t *a = activations_.data() + stride_ * c, *b = other_activations_.data() + stride_ * c;
            bool equal = std::memcmp(a, b, static_cast<size_t>(columns_)) == 0;
            const CellSums *x = kernels::column_sums(a, columns_), *y = kernels::column_sums(b, columns_);
            for (int64_t cell = 0; cell < columns_ / kernels::cell_columns; ++cell) {
                equal = equal && same(x[cell].d, y[cell].d) && same(x[cell].all, y[cell].all) &&
                        x[cell].start[0] == y[cell].start[0] && x[cell].start[1] == y[cell].start[1];
            }
            if (!equal) return report(one, "quantize, column " + std::to_string(c));
        }
        return true;
    }

    bool multiplies(const Kernels& one, int first, int n) {
        result_.refill();
        auto* result = reinterpret_cast<float*>(result_.data());
        // In two ranges of groups, as two threads would.
        const int64_t middle = n % 2 ? groups() / 2 : 0;
        for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, groups()}}) {
            kernels::multiply(one, format_, packed_.data(), columns_, rows_, begin, end,
                              activations_.data() + stride_ * first, stride_, n, result, result_stride_);
        }
        for (int c = 0; c < most_columns; ++c) {
            const float* actual = result + c * result_stride_;
            const int64_t written = c < n ? rows_ : 0;
            for (int64_t row = 0; row < written; ++row) {
                const float expected = expected_[(first + c) * result_stride_ + row];
                if (same(actual[row], expected)) continue;
                char what[160];
                std::snprintf(what, sizeof(what), "n = %d from column %d: column %d, row %d is %a instead of %a", n,
                              first, c, static_cast<int>(row), actual[row], expected);
                return report(one, what);
            }
            const auto* rest = reinterpret_cast<const uint8_t*>(actual + written);
            const auto* end = reinterpret_cast<const uint8_t*>(actual + result_stride_);
            if (!std::all_of(rest, end, [](uint8_t byte) { return byte == Guarded::mark; })) {
                return report(one, "wrote between or after the columns of the result");
            }
        }
        return result_.intact() || report(one, "wrote outside the result");
    }

    const Format& format_;
    int64_t rows_, columns_;
    bool sane_;
    size_t stride_, result_stride_;
    std::vector<float> x_;
    Guarded packed_, activations_, other_activations_, result_;
    std::vector<float> expected_;
};

}  // namespace

bool check(const Options& options) {
    const auto all = chosen_kernels(options);
    bool good = true;
    for (const Format* format : chosen_formats(options)) {
        std::mt19937 random(7);
        for (const auto& [rows, cells] : {std::pair{256, 1}, std::pair{41, 3}, std::pair{32, 8}, std::pair{48, 24},
                                          std::pair{16, 37}, std::pair{1, 72}}) {
            const int64_t columns = cells * kernels::cell_columns;
            if (!kernels::fits(*format, columns)) continue;
            for (bool sane : {true, false}) {
                Case one(*format, rows, columns, sane, random);
                for (size_t i = 1; i < all.size(); ++i) good = one.agrees(*all[i], random) && good;
            }
        }
    }
    std::string names;
    for (size_t i = 1; i < all.size(); ++i) names += std::string(" ") + all[i]->name;
    std::printf("check: %s:%s\n", good ? "all bits equal the reference's" : "FAILED", names.c_str());
    return good;
}

}  // namespace medusa::lab
