// libllama fills a new cache with zeros, and so takes all of its memory at once, however short the text stays. Here the
// system is asked for fresh pages instead, which are zeros and take memory when they are first written.
#pragma once

namespace medusa::kernels {

// From now on, buffers of the CPU are cleared that way, where that was seen to work (on Linux, unless memory is locked)
// and ggml is laid out as expected. Once per process, before any model is loaded.
void clear_buffers_lazily();

// Whether it does.
bool buffers_are_lazy();

}  // namespace medusa::kernels
