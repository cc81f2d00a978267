"""A run in a folder: written beside the training, readable while it grows and after any crash.

docs/reference/format.md says what stands in the folder. Here:

    layout        names of folders and files, and what is allowed as a name
    dtypes        how each dtype of torch stands in a safetensors file
    checksum      CRC-32
    lane          one append-only safetensors file; lanes are those of an attempt
    streams       append-only Arrow streams, and reading them past what is damaged
    site_text     a site as text that reads back
    commit        what is known of a commit beside its values
    journal       the Arrow stream whose batches are the commits
    small_values  the Arrow stream of small values
    uncommitted   values that were appended since the last commit
    attempt       one writer's folder: append, commit, close; attempt_reader reads it
    new_attempt   makes that folder, and refuses to go on with another run
    index         the journal as columns of numbers; index_file keeps it in a file
    blocks        rows of an index that come again from step to step, kept once
    queue         values on their way to the thread that writes
    staging       a tensor as bytes of its own, so that the training may go on
    selecting     which values are written, and what of them
    disk_settings what tt.Disk was asked for
    intake        values as they come, gathered and handed to the queue
    worker        the thread that writes
    lock          whether a living process writes
    disk          tt.Disk, the sink; attempt_recording is what it writes now
    size_estimate how large a run will be
    statistics_files  rows of statistics on disk; rows_feed hands them on, measured_rows and
                  mapped_rows read them, measured_history joins those of attempts
    mapped        values of an index, memory-mapped and checked
    history       which of what several attempts have counts; gaps names what none has
    training_progress  how far a training had come
    owner         whose a file is
    rank_source   the attempts of a rank, read as one run
    folder_source tt.open of a folder; folder_inventory names what is in it, without torch
    folder_doctor what of a folder is whole

The verbs by which values reach the disk, in their order:

    commit        what came since the last commit of the attempt counts, all of it or none, once
                  written; ``w.step()`` asks for it
    write         the commits that wait go into the files, values before the journal, and readers
                  see them: 20 ms after ``commit`` at the latest, if the disk keeps up
    drain         the caller waits until all that it handed over is written
    flush         drain; rows of statistics and the headers of lanes are written too, and files are
                  synced (``fdatasync``) unless ``durability="none"``
    sync          commit of the running step, then flush (``w.sync()``)
    close         commit of the running step, write, cut off what is not committed, make the index,
                  sync the files, mark the attempt as closed, and end the thread
"""
