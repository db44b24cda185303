// NumPy arrays in and out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>

namespace medusa {

// Half precision travels as its bits.
struct Half {
    uint16_t bits;
};

template <typename Element>
using NewMatrix = nanobind::ndarray<nanobind::numpy, Element, nanobind::ndim<2>>;

// A fresh [rows, columns] NumPy array with a copy of `data`.
template <typename Element, typename Source>
NewMatrix<Element> new_matrix(const Source* data, size_t rows, size_t columns) {
    static_assert(sizeof(Element) == sizeof(Source));
    auto copy = std::make_unique<Element[]>(rows * columns);
    std::memcpy(copy.get(), data, rows * columns * sizeof(Element));
    Element* raw = copy.release();
    nanobind::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<Element*>(p); });
    return NewMatrix<Element>(raw, {rows, columns}, owner);
}

}  // namespace medusa

template <>
struct nanobind::detail::dtype_traits<medusa::Half> {
    static constexpr dlpack::dtype value{static_cast<uint8_t>(dlpack::dtype_code::Float), 16, 1};
    static constexpr auto name = const_name("float16");
};
