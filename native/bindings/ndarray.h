// NumPy arrays in and out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>

namespace medusa {

using StateVector = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// A fresh [rows, columns] NumPy array with a copy of `data`; half precision travels as its bits.
template <typename Element, typename Source>
nanobind::object new_matrix(const Source* data, size_t rows, size_t columns,
                            nanobind::dlpack::dtype type = nanobind::dtype<Element>()) {
    static_assert(sizeof(Element) == sizeof(Source));
    auto copy = std::make_unique<Element[]>(rows * columns);
    std::memcpy(copy.get(), data, rows * columns * sizeof(Element));
    Element* raw = copy.release();
    nanobind::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<Element*>(p); });
    return nanobind::cast(nanobind::ndarray<nanobind::numpy>(raw, {rows, columns}, owner, {}, type));
}

inline constexpr nanobind::dlpack::dtype half_type{static_cast<uint8_t>(nanobind::dlpack::dtype_code::Float), 16, 1};

}  // namespace medusa
