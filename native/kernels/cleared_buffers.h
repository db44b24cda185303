// libllama fills a new cache with zeros, and so takes all of its memory at once, however short the text stays. This
// asks the system for fresh pages instead: they are zeros and take memory only when first written.
#pragma once

namespace medusa::kernels {

// From now on, CPU buffers are cleared that way, if it was seen to work (on Linux, unless memory is locked) and ggml is
// laid out as expected. Once per process, before any model is loaded.
void clear_buffers_lazily();

// Whether they are.
bool buffers_are_lazy();

}  // namespace medusa::kernels
