#include "drafting/dynamic_tree_drafter.h"

#include <algorithm>

namespace medusa {

DynamicTreeDrafter::DynamicTreeDrafter(std::unique_ptr<LevelSource> source, const DynamicTreeParams& params,
                                       const HeadCalibration::Table& calibration, std::shared_ptr<DraftCost> cost)
    : source_(std::move(source)),
      calibrations_{HeadCalibration(source_->depth(), calibration), HeadCalibration(source_->depth()),
                    HeadCalibration(source_->depth(), calibration)},
      cost_(std::move(cost)),
      tree_(source_->depth(), params) {}

void DynamicTreeDrafter::begin(std::span<const Token> prompt) {
    source_->prompt(prompt);
    tree_.forget();
    known_ = 0;
}

void DynamicTreeDrafter::draft(const DraftInput& input, Draft& out) {
    if (known_ > 0) tree_.learn(input.context.subspan(known_), calibrations_);
    known_ = input.context.size();
    out.set_root(input.context.back());
    if (input.plain) return;
    if (pause_ > 0) {
        --pause_;
        if (source_->begin_free(input)) {
            tree_.grow(*source_, input, calibrations_, *cost_, out, true);
        }
        return;
    }
    source_->begin(input);
    const bool free = source_->is_free(), asked = source_->reaches(input.context.last(1));
    const double gain = tree_.grow(*source_, input, calibrations_, *cost_, out, free);
    if (asked) free ? note_gain(gain - free_worth, longest_free_pause) : note_gain(gain, longest_pause);
}

void DynamicTreeDrafter::note_gain(double tokens, int longest) {
    gain_ += gain_weight * (tokens - gain_);
    if (gain_ > 0) {
        fruitless_ = 0;
        next_pause_ = first_pause;
    } else if (++fruitless_ >= patience) {
        pause_ = next_pause_;
        next_pause_ = std::min(2 * next_pause_, longest);
    }
}

}  // namespace medusa
