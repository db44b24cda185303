// The kernels as a llama.cpp CPU buffer type: weights are repacked when they are loaded, and products with them run in
// llama.cpp's own threads.
#pragma once

#include <string>

#include "ggml-backend.h"

namespace medusa::kernels {

struct Kernels;

inline constexpr const char* buffer_name = "MEDUSA";

struct Status {
    const Kernels* selected = nullptr;
    std::string requested;  // MEDUSA_ISA, as it was when the kernels were chosen
    std::string reason;     // why none is selected
    bool late = false;      // because a model was loaded earlier: its list of buffer types holds for the whole process
};
// The first call, before any model is loaded, chooses the kernels and puts the buffer type first in ggml's list.
const Status& status();

// Whether models loaded from now on get the kernels, and attention runs on them; true at first. Not while another
// thread decodes.
void use_kernels(bool wanted);
bool kernels_used();

// Whether the loaded ggml lays out its structures as ggml_internals.h says, on platforms that it covers.
bool layout_is_known();

// nullptr if it is not registered.
ggml_backend_buffer_type_t buffer_type();

// Whether products of a matrix of this type with so many columns run on the kernels when it lies in buffer_type(). Such
// a tensor is written whole, in one piece.
bool serves(ggml_type type, int64_t columns);

// Whether attention over a cache of these types and head sizes runs on the kernels.
bool serves_attention(ggml_type key, ggml_type value, int64_t key_size, int64_t value_size);

}  // namespace medusa::kernels
