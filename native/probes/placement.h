// Where the weights of a loaded model lie, which decides the kernels used for their products.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/buffer_type.h"
#include "kernels/operators.h"
#include "llama/model.h"

namespace medusa {

// What a forward pass does with a weight.
enum class Role {
    matrix,     // used for products
    experts,    // a stack of matrices, some of which are used
    embedding,  // rows are looked up
    other,      // norms, biases
};
const char* role_name(Role role);

// Weights of one role and type in buffers of one kind.
struct Placement {
    Role role;
    std::string type;    // ggml's name: "q4_K"
    std::string buffer;  // the buffer type's name: "CPU", "CPU_Mapped", "CUDA0", kernels::buffer_name
    int tensors = 0;
    uint64_t bytes = 0;  // in the type's own layout
};

// Largest first within a role. Empty if the platform does not tell.
std::vector<Placement> placement_of(const LlamaModel& model);

// What a device, or the CPU, holds of a model.
struct DeviceUse {
    std::string name;     // "CUDA0", "CPU"
    int layers = 0;       // a layer counts as where its first matrix lies
    bool output = false;  // the output matrix
    uint64_t bytes = 0;   // of weights
};

// In ggml's order of devices, without those that hold nothing. Empty if the platform does not tell.
std::vector<DeviceUse> devices_of(const LlamaModel& model);

// Whose fused attention a forward pass over one token uses on the CPU, tried out with such a cache.
kernels::AttentionUse attention_of(std::shared_ptr<LlamaModel> model, ggml_type type_k, ggml_type type_v);

// How the model's memory follows drafts: "cells" of one token each, which a tree shares; one running state, which
// follows a chain and can be stepped back ("snapshots") or has to be saved before a draft ("copies"); "none" where
// there can be no drafts.
const char* draft_memory_of(std::shared_ptr<LlamaModel> model);

// The matrices of a type that are used for products and lie in main memory.
std::vector<ggml_tensor*> matrices_of(const LlamaModel& model, const std::string& type);

}  // namespace medusa
