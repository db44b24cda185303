#include "drafting/growth_drafter.h"

#include <algorithm>

namespace medusa {

GrowthDrafter::GrowthDrafter(std::unique_ptr<LevelSource> source, const GrowthParams& params, const GrowthStart& start)
    : source_(std::move(source)),
      calibration_(source_->depth(), start.calibration),
      cost_(start.curve, start.learns_cost),
      growth_(source_->depth(), params) {}

void GrowthDrafter::begin(std::span<const Token> prompt) {
    growth_.forget();
    known_ = 0;
}

void GrowthDrafter::draft(const DraftInput& input, const Tree& shape, Draft& out) {
    const Stopwatch watch;
    if (known_ > 0) {
        const auto came = input.context.subspan(known_);
        cost_.record_step(step_ms_, static_cast<int>(came.size()));
        growth_.learn(came, calibration_);
    }
    known_ = input.context.size();
    if (shape.size() == 1) {
        out.tree = &shape;
    } else if (pause_ > 0) {
        --pause_;
        out.tree = &root_only_;
        out.tokens.assign(1, input.context.back());
        out.q.assign(1, 1.0f);
    } else {
        source_->begin(input);
        growth_.grow(*source_, input.context.back(), input.room, calibration_, cost_, out);
        note_size(out.tree->size());
    }
    draft_ms_ = watch.elapsed_ms();
}

void GrowthDrafter::note_size(int nodes) {
    if (nodes > 1) {
        fruitless_ = 0;
        next_pause_ = first_pause;
    } else if (++fruitless_ >= patience) {
        pause_ = next_pause_;
        next_pause_ = std::min(2 * next_pause_, longest_pause);
    }
}

void GrowthDrafter::verified(const Tree& tree, double ms) {
    cost_.record({tree.size(), tree.leaf_count()}, ms);
    step_ms_ = draft_ms_ + ms;
}

}  // namespace medusa
