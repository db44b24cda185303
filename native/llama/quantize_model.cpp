#include "llama/quantize_model.h"

#include <cstdio>

#include "base/common.h"
#include "llama.h"
#include "llama/backend.h"

namespace medusa {

void quantize_model(const std::string& source, const std::string& target, const QuantizeParams& params,
                    const OnQuantized& on_tensor) {
    initialise_backend();
    auto p = llama_model_quantize_default_params();
    p.nthread = params.threads;
    p.ftype = static_cast<llama_ftype>(params.file_type);
    p.allow_requantize = params.allow_requantize;
    p.pure = params.pure;
    p.max_buf_size = size_t{256} << 20;
    // libllama reports its progress to the log alone: "[  12/ 290] blk.0.attn_q.weight ...".
    const LogReader progress([&](const char* text) {
        int tensor = 0, tensors = 0;
        if (on_tensor && std::sscanf(text, "[%d/%d]", &tensor, &tensors) == 2) on_tensor(tensor, tensors);
    });
    if (llama_model_quantize(source.c_str(), target.c_str(), &p)) {
        throw Error("quantizing " + source + " failed" + log_reason(), "choose another {quant}");
    }
}

}  // namespace medusa
