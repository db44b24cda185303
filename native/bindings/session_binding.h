// A session as Python sees it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "compose/compose.h"
#include "decoding/session.h"

namespace medusa {

class SessionBinding {
  public:
    explicit SessionBinding(ComposedSession composed)
        : session_(std::move(composed.session)), dynamic_(composed.dynamic), recycling_(composed.recycling) {}

    Session& session() { return *session_; }
    const DynamicTreeDrafter* dynamic() const { return dynamic_; }
    // What recycling knows, which must not change meanwhile: throws Error where it drafts nothing, or during a run.
    RecyclingLevels& recycling() const;
    // Runs with the GIL released. A Python exception in `on_step` or a pending signal ends the run and is raised.
    Generation generate(const std::vector<Token>& prompt, const GenerateParams& params, const nb::object& on_step);

  private:
    std::unique_ptr<Session> session_;
    const DynamicTreeDrafter* dynamic_;
    RecyclingLevels* recycling_;
    std::atomic<bool> busy_ = false;
};

}  // namespace medusa
