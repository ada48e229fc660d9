"""What an operator does when something went wrong that the cluster must not decide alone.

    loss   a range whose journal is not what its checkpoint says stands still: look at it, and let it go on
    fsck   which tasks are in the store but not in the journal, or the other way round; and what to do about it

Both read journal and store past the pollers, while those work. What they write are facts that the journal proves, and
a checkpoint of a range that stands still; nothing else. A task that was lost goes by its owner, as a late create does.
"""
