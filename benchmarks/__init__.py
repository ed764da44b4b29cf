"""Speed, measured as ratios: contestants interleaved in one run, threads pinned, medians."""
