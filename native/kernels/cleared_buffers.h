// libllama fills a new cache with zeros, and so takes all of its memory at once, however short the text stays. Here the
// system is asked for fresh pages instead, which are zeros and take memory when they are first written.
#pragma once

namespace medusa::kernels {

// From now on, buffers of the CPU are cleared that way. Once per process, before any model is loaded. Nothing happens
// where the system has no such pages (it is Linux that does) or does not give them: then zeros are written.
void clear_buffers_lazily();

// Whether it does.
bool buffers_are_lazy();

}  // namespace medusa::kernels
